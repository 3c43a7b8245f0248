"""Readers of live.jsonl for the tools that people have: a timeline for Perfetto, TensorBoard, MLflow, Prometheus."""
