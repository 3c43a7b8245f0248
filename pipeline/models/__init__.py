"""Models over looked-up embeddings; each `forward` follows the equation of its paper.

All fields have the same width, `model.embedding_dim`: rows are moved as a whole, in slots of one size, so fields of
different widths would need a table, a map and a log per width.

`model.kind` may also be any torch.nn.Module class that you write; nothing needs to be registered. B examples, X
numbers, F categories, embedding width D, T labels; all tensors are float32:

    class Mine(nn.Module):
        first_order = True  # optional: rows have one more weight, the key's first-order term

        # F, X, D, and the arguments that model.args may have
        def __init__(self, num_fields, num_numbers, embedding_dim, scale=1.0):
            super().__init__()
            self.out = nn.Linear(num_fields * embedding_dim + num_numbers, 1)
            self.scale = scale

        # logits [B], with several labels [B, T], of numbers [B, X], embeddings [B, F, D] (lists are pooled already),
        # and first-order weights [B, F] ([B, 0] without first_order). In training it may return a tuple for the loss;
        # its first value must be the logits
        def forward(self, numbers, embeddings, first_order):
            flat = torch.cat([embeddings.flatten(1), numbers], 1)
            return self.scale * self.out(flat).squeeze(1) + first_order.sum(1)

        # optional: the loss, a scalar, from what forward returned, labels [B, T], and weights [B] (None without
        # data.weight). It must be a mean over the examples, weighted if there are weights, since each of several
        # workers has only a part of a batch
        def loss(self, output, labels, weights):
            losses = (torch.sigmoid(output) - labels[:, 0]).square()
            return losses.mean() if weights is None else (losses * weights).sum() / weights.sum()

If there is no `loss`, the loss of an example is its binary cross-entropy, summed over the labels.
"""

from pipeline.models.aitm import AITM
from pipeline.models.autoint import AutoInt
from pipeline.models.bst import BST, SASRec
from pipeline.models.dcn import DCN
from pipeline.models.dcnv2 import DCNMix, DCNv2
from pipeline.models.deepfm import DeepFM
from pipeline.models.dien import DIEN
from pipeline.models.din import DIN
from pipeline.models.dnn import DNN, WideDeep
from pipeline.models.esmm import ESMM
from pipeline.models.fcn import FCN
from pipeline.models.finalnet import FinalNet
from pipeline.models.fm import FM
from pipeline.models.history import MeanPooling
from pipeline.models.lr import LR
from pipeline.models.masknet import MaskNet
from pipeline.models.mmoe import MMoE
from pipeline.models.ple import PLE
from pipeline.models.shared_bottom import SharedBottom
from pipeline.models.xdeepfm import xDeepFM

__all__ = [
    "AITM", "BST", "DCN", "DIEN", "DIN", "DNN", "ESMM", "FCN", "FM", "LR", "PLE", "AutoInt", "DCNMix", "DCNv2",
    "DeepFM", "FinalNet", "MMoE", "MaskNet", "MeanPooling", "SASRec", "SharedBottom", "WideDeep", "xDeepFM",
]  # fmt: skip
