"""Relevance metrics, a file for each family: classes of `lamina.relevance.protocol.Metric`."""
