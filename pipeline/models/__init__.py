"""Models over looked-up embeddings; each `forward` reads as its paper's equation.

All fields have one width, `model.embedding_dim`: rows are moved whole, in slots of one size, so that fields of several
widths would need a table, a map and a log for each width. Any torch.nn.Module class of the user's own, with the same
constructor and `forward`, is a workflow's model as well; nothing is registered.
"""

from pipeline.models.autoint import AutoInt
from pipeline.models.dcn import DCN
from pipeline.models.dcnv2 import DCNMix, DCNv2
from pipeline.models.deepfm import DeepFM
from pipeline.models.dnn import DNN, WideDeep
from pipeline.models.fm import FM
from pipeline.models.lr import LR
from pipeline.models.xdeepfm import xDeepFM

__all__ = ["DCN", "DNN", "FM", "LR", "AutoInt", "DCNMix", "DCNv2", "DeepFM", "WideDeep", "xDeepFM"]
