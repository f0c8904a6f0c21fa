"""Why a step differs: runs are recorded operator by operator, and the first operator at which two of them part is named."""
