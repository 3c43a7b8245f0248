"""Training on a block: the dense model over looked-up embeddings, its optimizer, its metrics.

Gradients of equal keys are summed in a fixed order, and rows are updated by the kernels of `pipeline.optim`, so torch
determines only the arithmetic of the dense model. With batch norm and Adam's small eps, that arithmetic amplifies a
single bit of the initial embeddings to 1e-3 of the loss within 50 steps, also in plain torch. So comparisons with torch
need a tolerance, while comparisons with the plain trainer of the tests need none.

With `model.compile`, the forward pass, the loss and the backward pass down to the embeddings form one graph for a full
batch; other batches and all scoring run eagerly. The graph is compiled with inputs of the right layout while the first
blocks are read. A model that torch would have to recompile repeatedly ends the run; otherwise it would continue
eagerly, with bits that depend on the history of the process.
"""
