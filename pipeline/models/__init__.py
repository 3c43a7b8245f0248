"""Models over looked-up embeddings; each `forward` follows the equation of its paper.

All fields have the same width, `model.embedding_dim`: rows are moved as a whole, in slots of one size, so fields of
different widths would need a table, a map and a log per width. A workflow can also use any torch.nn.Module class of
your own with the same constructor and `forward`; nothing needs to be registered.
"""

from pipeline.models.autoint import AutoInt
from pipeline.models.dcn import DCN
from pipeline.models.dcnv2 import DCNMix, DCNv2
from pipeline.models.deepfm import DeepFM
from pipeline.models.dnn import DNN, WideDeep
from pipeline.models.fm import FM
from pipeline.models.lr import LR
from pipeline.models.shared_bottom import SharedBottom
from pipeline.models.xdeepfm import xDeepFM

__all__ = ["DCN", "DNN", "FM", "LR", "AutoInt", "DCNMix", "DCNv2", "DeepFM", "SharedBottom", "WideDeep", "xDeepFM"]
