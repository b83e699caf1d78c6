SELECT json FROM environments WHERE environment_digest = $1
