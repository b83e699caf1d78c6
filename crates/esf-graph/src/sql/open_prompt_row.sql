UPDATE prompts SET policy_version = coalesce(policy_version, $1) WHERE number = $2
