SELECT version, weights, adapter, published_at FROM policy_versions WHERE run = $1 AND version = $2
