SELECT environment_digest, json FROM environments
