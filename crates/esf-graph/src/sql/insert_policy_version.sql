INSERT INTO policy_versions (run, version, weights, adapter, published_at) VALUES ($1, $2, $3, $4, $5)
