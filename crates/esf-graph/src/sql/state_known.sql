SELECT 1 FROM logical_states WHERE state_id = $1
