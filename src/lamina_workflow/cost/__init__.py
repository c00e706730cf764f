"""What a study will take: work counted, the pace of this machine, memory at its peak."""
