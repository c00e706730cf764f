"""Read and write Parquet, JSON and safetensors files, completely or not at all."""
