"""The two Flower apps of UM-pFSSL, those of the installed package `fedapp`.

Their names, `client_app` and `server_app`, are too general for site-packages: there they lie in
`fedapp/app`, in a checkout beside `fedapp`.
"""

import sys
from pathlib import Path

import fedapp

_INSTALLED = Path(fedapp.__file__).parent / "app"
_FOLDER = str(_INSTALLED if _INSTALLED.is_dir() else _INSTALLED.parents[1])
if _FOLDER not in sys.path:
    sys.path.append(_FOLDER)
