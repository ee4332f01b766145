"""What programs of ranks have in common that a test starts: each thing that is tried is a line, which things() of tap.py reads."""


def say(right, name, why=""):
    print("ok" if right else "not", name, "" if right else " ".join(str(why).split()), flush=True)


def error_of(call, *given, **named):
    """The exception that a call ends with; None when it does not."""
    try:
        call(*given, **named)
    except Exception as e:
        return e
    return None
