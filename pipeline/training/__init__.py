"""Training on a block: the dense model over looked-up embeddings, its optimizer, its metrics.

Gradients of equal keys are summed in a fixed order and rows are updated by the kernels of `pipeline.optim`, so all that
torch decides is the arithmetic of the dense model. With batch norm and Adam's small eps that arithmetic amplifies a
single bit of the initial embeddings to 1e-3 of the loss within 50 steps, in plain torch as well. So comparisons with
torch need a tolerance, and comparisons with the plain trainer of the tests need none.

With `model.compile` the forward pass, the loss and the backward pass down to the embeddings of a full batch are one
graph; other batches and all scoring run eagerly. It is compiled with inputs of the right layout while the first blocks
are read. A model that torch would have to compile again and again ends the run, because it would continue eagerly, with
bits that depend on the past of the process.
"""
