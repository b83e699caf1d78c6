UPDATE runs SET policy_version = $1, policy_weights = $2, policy_adapter = $3, status = $4, cancelled = $5, prompts = $6,
    complete = $7, siblings = $8, waiting = $9, running = $10, results = $11, errors = $12, cancelled_siblings = $13, refills = $14,
    late = $15, sequence = $16, accepted = $17, trained = $18, batches = $19, trainer_step = $20
WHERE number = $21
