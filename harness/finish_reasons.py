"""The names that engines and servers have for the reason why a completion ended.

They are stored as they came; this module alone says what they mean.
"""

import re
from functools import cache

_REASONS_BY_MEANING = {
    # The model ended its turn or wrote a stop string. vLLM ends a `repetition` in the same way.
    "stop": "stop eos eostoken eosfound endoftext endofturn endturn stopsequence stopstring "
    "stopsequencereached stopstringfound stopped stoptoken word finish finished complete completed "
    "normal alternativestatusfinal toolcall toolcalls tooluse functioncall repetition",
    # the completion reached its own limit of tokens, or that of the context
    "length": "length limit maxtokens maxtoken maxlength maxlengthreached maxnewtokens "
    "maxoutputtokens maxoutput maxcompletiontokens maximumtokens maxpredictedtokensreached "
    "modellength tokenlimit contextlength contextlengthreached contextlengthexceeded "
    "modelcontextwindowexceeded truncated alternativestatustruncatedfinal",
    # a filter of the server removed the completion or a part of it
    "filtered": "contentfilter contentfiltered contentfiltering contentpolicyviolation safety "
    "imagesafety recitation blocklist blacklist prohibitedcontent spii sensitive refusal "
    "guardrailintervened guardrails errortoxic datainspectionfailed responsibleaipolicyviolation "
    "contentmoderation moderation language alternativestatuscontentfilter",
    None: "null none unspecified",
}
"""Reasons in lower-case letters without other signs, by what they mean; None: not reported."""
_MEANING_BY_REASON = {
    reason: meaning
    for meaning, reasons_text in _REASONS_BY_MEANING.items()
    for reason in reasons_text.split()
}


@cache
def read_reason(reason: str | None) -> str | None:
    """What a finish reason means.

    Args:
        reason: As it came, such as `eos_token`, `MAX_TOKENS`, `FinishReason.STOP` or
            `content_filter: RECITATION`.

    Returns:
        `stop`, `length` or `filtered`; None if it was not reported; else `broken`, such as for
        `abort`, `error` or `network_error`, which end a request without a whole completion.
    """
    # without the name of an enumeration, details after a colon, and signs
    normalised_reason = re.sub(r"^finish_?reason|:.*|[\W_]", "", (reason or "").lower())
    return _MEANING_BY_REASON.get(normalised_reason, "broken") if normalised_reason else None
