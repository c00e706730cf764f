"""How much of the unpruned model's distribution is lost: KL(base ‖ f_-u) of next tokens, in nats [EvoPress]."""

METRIC = {"pass_": "removal", "column": "output_kl", "help": "Kullback-Leibler divergence of the output"}
