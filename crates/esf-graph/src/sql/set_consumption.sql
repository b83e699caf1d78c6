INSERT INTO consumptions (consumer, sequence, state, batch, step, reason) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (consumer, sequence) DO UPDATE SET state = excluded.state, batch = excluded.batch, step = excluded.step,
    reason = excluded.reason, expires_at = NULL, boot_id = NULL
