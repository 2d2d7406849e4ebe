"""The logic of every stage, without a server: envelope in, envelope out."""
