UPDATE prompts SET revision = $1, refills = $2 WHERE number = $3
