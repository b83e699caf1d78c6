INSERT INTO consumptions (consumer, sequence, batch, expires_at, boot_id, state) VALUES ($1, $2, $3, $4, $5, 'leased')
ON CONFLICT (consumer, sequence) DO UPDATE SET state = 'leased', batch = excluded.batch, expires_at = excluded.expires_at,
    boot_id = excluded.boot_id
