"""Exports of a run to other tools: Perfetto, TensorBoard, MLflow, Prometheus. All use the same reader of curves."""
