INSERT INTO actions (edge, action, action_digest, name) VALUES ($1, $2, $3, $4)
