INSERT INTO policies (policy_digest, toml) VALUES ($1, $2) ON CONFLICT (policy_digest) DO NOTHING
