INSERT INTO batches (run, batch, consumer, sequences, created_at, created_by, trace_id) VALUES ($1, $2, $3, $4, $5, $6, $7)
