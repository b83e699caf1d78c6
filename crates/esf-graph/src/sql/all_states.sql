SELECT state_id, json FROM logical_states
