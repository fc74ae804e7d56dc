"""How Turnwire is brought up: the local stack, the images' settings and the database roles."""
