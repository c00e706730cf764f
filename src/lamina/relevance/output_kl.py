"""How much of the unpruned model's distribution is lost: KL(base ‖ f_-u) of next tokens, in nats [EvoPress]."""
