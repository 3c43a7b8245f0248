"""Exports of a run to other tools, each on the reader of its curves: Perfetto, TensorBoard, MLflow, Prometheus."""
