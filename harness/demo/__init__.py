"""The bundled demo: a small trained model, its problem set, and the code that made both."""
