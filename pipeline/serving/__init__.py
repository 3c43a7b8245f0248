"""Applications of a trained model: score files, look rows up, export, serve."""
