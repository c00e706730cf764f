"""Benchmarks: lm-eval tasks, perplexity, latency and memory."""
