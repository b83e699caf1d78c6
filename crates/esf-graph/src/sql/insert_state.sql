INSERT INTO logical_states (state_id, json) VALUES ($1, $2) ON CONFLICT (state_id) DO NOTHING
