"""Will it fit: what each GPU of either side has to hold, from the model's config alone, before one is touched.

    server.estimate(config, capacity_gib, serving)    what a vLLM GPU holds, and how many tokens its KV cache takes
    trainer.estimate(config, capacity_gib, training)  what a GPU of the trainer holds
    shares.problem(side)                              the line to show when it is tight, or too much
    shares.rows(side)                                 the rows of a table

Parameter counts are exact for the families of `model_config.FAMILIES`; what rests on a measurement or a guess says so in
its note. `docs/memory.md` has the formulas on one page.
"""
