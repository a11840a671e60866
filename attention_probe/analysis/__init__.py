"""From traces to answers: curves with bands over prompts, and which heads differ between two conditions."""
