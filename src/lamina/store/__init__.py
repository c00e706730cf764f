"""Files in and out: Parquet, JSON and safetensors, whole or not at all."""
