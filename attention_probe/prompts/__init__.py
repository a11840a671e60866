"""Which prompts are rerun, and which role each of their tokens has."""

from harness.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "choose_prompts": ["PromptsConfig", "choose", "open_source"],
        "token_roles": ["TokenizedPrompt", "common_tokens", "tokenize"],
    },
)
