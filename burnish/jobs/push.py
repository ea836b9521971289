"""Upload an exported model to the Hugging Face hub. The token is that of HF_TOKEN or of `hf auth login`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from burnish.errors import UserError

KEY = "--push"


def check_repo(repo: str) -> None:
    """Refuse an invalid name or a missing token before anything is exported."""
    from huggingface_hub import constants, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        problem = f"not a name of a repository: {error}"
        raise UserError(problem, key=KEY, value=repo, hint="--push OWNER/NAME") from error
    if constants.HF_HUB_OFFLINE:
        raise UserError("the hub is disabled by HF_HUB_OFFLINE", key=KEY, value=repo, hint="unset HF_HUB_OFFLINE")
    if get_token() is None:
        raise UserError("no token for the hub", key=KEY, value=repo, hint="HF_TOKEN=... or `hf auth login`")


def push(folder: Path, repo: str, *, private: bool = True, retry: str | None = None) -> str:
    """Create the repository if there is none, and commit the folder to it; returns its address.

    An existing public repository is refused if `private`: its visibility would not change. `retry` is what to type
    after a failure of the network.
    """
    from huggingface_hub import HfApi

    check_repo(repo)
    api = HfApi(library_name="burnish")
    with _user_errors(repo, api.endpoint, retry):
        url = api.create_repo(repo, private=private, exist_ok=True)
        if private and api.model_info(url.repo_id).private is False:
            raise UserError(
                "the repository exists and is public",
                key=KEY,
                value=url.repo_id,
                hint="--no-private to upload to it anyway, or another name",
            )
        api.upload_folder(repo_id=url.repo_id, folder_path=folder, commit_message="Upload a model trained with Burnish")
    return str(url)


@contextmanager
def _user_errors(repo: str, endpoint: str, retry: str | None) -> Iterator[None]:
    """Errors of the hub and of the network as UserError."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except UserError:
        raise
    except HfHubHTTPError as error:
        status = error.response.status_code
        why = error.server_message or str(error).strip().split("\n")[0]
        hint = "a token with write access: HF_TOKEN=... or `hf auth login`" if status in (401, 403, 404) else None
        raise UserError(f"the hub answered {status}: {why}", key=KEY, value=repo, hint=hint) from error
    except Exception as error:  # those of the client's HTTP library, which differs between versions, and of the disk
        cause = error.__cause__ or error
        reason = str(cause).strip().split("\n")[0] or type(cause).__name__
        problem = f"cannot upload to {endpoint}: {type(cause).__name__}: {reason}"
        raise UserError(problem, key=KEY, value=repo, hint=retry) from error
