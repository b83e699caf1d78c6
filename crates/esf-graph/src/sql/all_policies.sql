SELECT policy_digest, toml FROM policies
