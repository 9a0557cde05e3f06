"""How often the recorder is right: on runs in which nothing is wrong, and on runs in which one thing is."""
