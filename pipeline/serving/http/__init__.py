"""Scoring over HTTP with the Open Inference Protocol (version 2): limits, swaps and metrics around one servable."""
