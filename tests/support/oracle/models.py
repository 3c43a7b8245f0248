"""Every model of the package, with small arguments."""

from pipeline.models import DCN, DNN, FM, LR, AutoInt, DCNMix, DCNv2, DeepFM, SharedBottom, WideDeep, xDeepFM

SMALL = {"hidden": (5,)}
MODELS = {
    "LR": (LR, {}), "FM": (FM, {}), "DNN": (DNN, SMALL), "WideDeep": (WideDeep, SMALL), "DeepFM": (DeepFM, SMALL),
    "DCN": (DCN, SMALL), "DCNv2": (DCNv2, SMALL),
    "DCNMix": (DCNMix, SMALL | {"cross_layers": 2, "experts": 2, "rank": 4}),
    "xDeepFM": (xDeepFM, SMALL | {"cin": (8,)}),
    "AutoInt": (AutoInt, {"attention_layers": 2, "attention_dim": 8}),
    "SharedBottom": (SharedBottom, SMALL | {"tower": (4,), "num_labels": 1}),
}  # fmt: skip
