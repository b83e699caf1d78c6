UPDATE searches SET config = $1, config_digest = $2 WHERE number = $3
