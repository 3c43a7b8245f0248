"""Exports of a run to other tools: Perfetto, TensorBoard, MLflow, Prometheus. They share one reader of its curves."""
