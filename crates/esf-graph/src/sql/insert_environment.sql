INSERT INTO environments (environment_digest, executor, secrets_policy, json)
VALUES ($1, $2, $3, $4)
ON CONFLICT (environment_digest) DO NOTHING
