"""What is new to whom, answered from memory: fed from the streams before their positions show."""
