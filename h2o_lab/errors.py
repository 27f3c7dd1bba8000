"""The one error that a user can cause."""


class UserError(Exception):
    """Bad input, said in one sentence: what is wrong, where, and what is allowed.

    The command line prints the sentence alone; a traceback is for defects of h2o_lab itself.
    """
