"""The ablation engine: every unit's removal, measured."""
