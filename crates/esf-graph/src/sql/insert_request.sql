INSERT INTO requests (actor, operation, key, request_digest, reply, created_at) VALUES ($1, $2, $3, $4, $5, $6)
