"""Features: schema, packed blobs, readers, and the assembly of model inputs."""
